"""Region features of detectors, converted once from the usual file formats."""
