package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"lighter/cmd/command"
	"lighter/logqueue"
)

// openLog returns the log of a hub or a node, on standard error. flush has to be called before the
// program ends. Logging never waits for a reader of standard error, because containers' reads would
// then wait, too.
func openLog(level, format string) (log *slog.Logger, flush func(), err error) {
	handler, err := logFormat(level, format)
	if err != nil {
		return nil, nil, err
	}
	queue := logqueue.New(os.Stderr, handler)
	log = slog.New(queue)
	slog.SetDefault(log) // for libraries
	return log, func() { queue.Close(command.PrintTimeout) }, nil
}

// logFormat returns the handler that formats the log's lines, by the configuration's keys. Lines
// have the same keys everywhere: image, chain, tree, device, hub, root, address, err.
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
