"""The web page. It asks the library and shows the answers; it computes nothing itself."""
