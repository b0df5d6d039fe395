"""shardbus inside other frameworks. A module of this package imports the framework; nothing else of
shardbus imports one of these modules."""
