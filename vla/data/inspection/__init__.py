"""What is in a data set and what is wrong with it: numbers, images, page, `vla data inspect`."""
