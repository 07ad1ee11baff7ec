"""Helpers without a domain: files, arguments, intervals, pages, video."""
