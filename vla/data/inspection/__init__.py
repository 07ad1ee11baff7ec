"""What is in a data set and what is wrong with it: numbers, pictures, page, `vla data inspect`."""
