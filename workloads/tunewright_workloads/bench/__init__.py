"""Load tests of an OpenAI endpoint: open-loop arrivals, latencies per token, honest percentiles."""
