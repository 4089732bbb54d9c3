"""The version of the package: that of the broker that it was made with."""

VERSION = "0.4.0"
