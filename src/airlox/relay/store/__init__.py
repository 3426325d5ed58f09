"""Where a relay keeps sessions: one interface (base), one store per file, one test suite."""
