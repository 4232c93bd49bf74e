package main

import (
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

// hubFlags are the flags of every command that is a hub's client.
type hubFlags struct{ options client.Options }

func (f *hubFlags) add(cmd *cobra.Command) {
	url := os.Getenv("LIGHTER_HUB")
	if url == "" {
		url = "http://127.0.0.1:7070"
	}
	cmd.Flags().StringVar(&f.options.URL, "hub", url, "the hub's `URL`, or unix:/PATH (environment: LIGHTER_HUB)")
	cmd.Flags().StringVar(&f.options.Scope, "scope", wire.DefaultScope, "the `SCOPE` on the hub")
	cmd.Flags().BoolVar(&f.options.PlainHTTP, "plain-http", false, "allow plain HTTP to a hub that is not on this machine")
	cmd.Flags().StringVar(&f.options.TokenFile, "token-file", os.Getenv("LIGHTER_TOKEN_FILE"), "the `FILE` with the token that the hub requires for changes (environment: LIGHTER_TOKEN_FILE)")
	cmd.Flags().StringVar(&f.options.CAFile, "ca-file", "", "certificates (PEM `FILE`) to trust for the hub")
}

func (f *hubFlags) client() (*client.Client, error) {
	hub, err := client.New(f.options)
	if err != nil {
		return nil, command.Usage(err)
	}
	return hub, nil
}
