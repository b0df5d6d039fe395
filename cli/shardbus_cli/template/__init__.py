"""The project that `shardbus init` makes; `shardbus dev --demo` runs its application."""
