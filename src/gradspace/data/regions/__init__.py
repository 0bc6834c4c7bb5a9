"""Region features of a detector, in the files that people have them in, converted once."""
