"""Tables and models in and out: ids, files, and how a file is replaced."""
