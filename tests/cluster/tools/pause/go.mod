module tunewright.dev/tests/pause

go 1.24
