package main

import (
	"fmt"
	"io"
	"log/slog"
)

// newLog returns the log of a hub or a node, as their configurations have it. Its
// lines say what happened, and the things that it happened to under the same keys
// everywhere: image, chain, tree, device, hub, root, address, cause.
func newLog(w io.Writer, level, format string) (*slog.Logger, error) {
	var options slog.HandlerOptions
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("log_level %q is not one of debug, info, warn, error", level)}
	}
	options.Level = least
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &options)), nil
	}
	return nil, usageError{fmt.Errorf("log_format %q is not one of text, json", format)}
}
