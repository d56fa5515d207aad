"""Models as bytes: on the way, in a checkpoint and in the file that ships."""
