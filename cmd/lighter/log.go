package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"lighter/cmd/command"
	"lighter/logqueue"
)

// openLog returns the log of a hub or a node, on standard error, and a function that has to
// be called in the end. Nobody waits for who reads it: a container's read must not.
func openLog(level, format string) (log *slog.Logger, flush func(), err error) {
	handler, err := logFormat(level, format)
	if err != nil {
		return nil, nil, err
	}
	queue := logqueue.New(os.Stderr, handler)
	log = slog.New(queue)
	slog.SetDefault(log) // for what is not told of any other
	return log, func() { queue.Close(command.PrintTimeout) }, nil
}

// logFormat returns what makes a log's lines, as configurations have it. They
// say what happened, and the things that it happened to under the same keys
// everywhere: image, chain, tree, device, hub, root, address, cause.
func logFormat(level, format string) (func(io.Writer) slog.Handler, error) {
	var options slog.HandlerOptions
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, command.Usage(fmt.Errorf("log_level %q is not one of debug, info, warn, error", level))
	}
	options.Level = least
	switch format {
	case "text":
		return func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, &options) }, nil
	case "json":
		return func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, &options) }, nil
	}
	return nil, command.Usage(fmt.Errorf("log_format %q is not one of text, json", format))
}
