"""The kinds of promise a contract can make; one file per clause."""
