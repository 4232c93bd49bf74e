package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
	"lighter/node/control"
	"lighter/wire"
	"lighter/wire/client"
)

// run makes cmd call do with a client. newClient is called after the flags are parsed.
func run[C any](cmd *cobra.Command, newClient func() (C, error),
	do func(ctx context.Context, c C, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		return reachable(cmd, do(cmd.Context(), c, args))
	}
	return cmd
}

// reachable adds a remedy to the error of a command that cannot connect to its hub.
func reachable(cmd *cobra.Command, err error) error {
	dial := (*net.OpError)(nil)
	if cmd.Flags().Lookup("hub") == nil || !errors.As(err, &dial) || dial.Op != "dial" {
		return err
	}
	return fmt.Errorf("%w: start the hub, or name another one with --hub or LIGHTER_HUB", err)
}

// query does what run does, and prints the answer of ask: as JSON if --json is given, otherwise
// with print. If the answer has a method Err, its error is the command's.
func query[C, T any](cmd *cobra.Command, newClient func() (C, error),
	ask func(ctx context.Context, c C, args []string) (T, error), print func(T) error) *cobra.Command {
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	return run(cmd, newClient, func(ctx context.Context, c C, args []string) error {
		answer, err := ask(ctx, c, args)
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(os.Stdout, answer)
		} else {
			err = print(answer)
		}
		if failed, ok := any(answer).(interface{ Err() error }); ok && err == nil {
			err = failed.Err()
		}
		return err
	})
}

// hubFlags gives cmd the flags of a hub's client.
func hubFlags(cmd *cobra.Command) *client.Options {
	o, f := new(client.Options), cmd.Flags()
	url := cmp.Or(os.Getenv("LIGHTER_HUB"), "http://127.0.0.1:7070")
	f.StringVar(&o.URL, "hub", url, "the hub's `URL`, or unix:/PATH (environment: LIGHTER_HUB)")
	f.StringVar(&o.Domain, "domain", wire.DefaultDomain, "the `DOMAIN` on the hub, as its configuration names it")
	f.BoolVar(&o.PlainHTTP, "plain-http", false, "allow plain HTTP to a hub that is not on this machine")
	f.StringVar(&o.TokenFile, "token-file", os.Getenv("LIGHTER_TOKEN_FILE"),
		"the `FILE` with the token that the hub requires for changes (environment: LIGHTER_TOKEN_FILE)")
	f.StringVar(&o.CAFile, "ca-file", "", "certificates (PEM `FILE`) to trust for the hub")
	return o
}

// hubClient gives cmd the flags of a hub's client, and returns a function that makes the client.
func hubClient(cmd *cobra.Command) func() (*client.Client, error) {
	options := hubFlags(cmd)
	return func() (*client.Client, error) {
		hub, err := client.New(*options)
		if err != nil {
			return nil, command.Usage(err)
		}
		return hub, nil
	}
}

// hubQuery does what query does, for a command that asks a hub.
func hubQuery[T any](cmd *cobra.Command, ask func(ctx context.Context, hub *client.Client, args []string) (T, error),
	print func(T) error) *cobra.Command {
	return query(cmd, hubClient(cmd), ask, print)
}

// rootFlag adds the flag --root to cmd and returns its value.
func rootFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("root", node.DefaultConfig().Root, "the node's `DIR`")
}

// nodeQuery does what query does, for a command that asks the node on this machine.
func nodeQuery[T any](cmd *cobra.Command, ask func(ctx context.Context, node *control.Client, args []string) (T, error),
	print func(T) error) *cobra.Command {
	root := rootFlag(cmd)
	return query(cmd, func() (*control.Client, error) { return control.New(*root), nil }, ask, print)
}

// argument returns the argument with that number, or "" if it was not given.
func argument(args []string, number int) string {
	if number < len(args) {
		return args[number]
	}
	return ""
}
