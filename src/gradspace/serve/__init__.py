"""Search in a browser and over HTTP: `gradspace serve INDEX`."""
