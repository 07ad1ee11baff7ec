"""Between policy and arm: conversion, alignment, safety, and the ROS 2 nodes."""
