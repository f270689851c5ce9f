//! From a program to ranked tile programs.
