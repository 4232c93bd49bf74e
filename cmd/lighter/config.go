package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lighter/hub"
	"lighter/node"
)

// effective puts a configuration together: defaults, then the file, then the
// flags that were given. config holds defaults and flags when it comes in.
func effective(cmd *cobra.Command, file string, config any) error {
	if file == "" {
		return nil
	}
	given := map[string]string{}
	lists := map[string][]string{}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			lists[f.Name] = list.GetSlice()
			return
		}
		given[f.Name] = f.Value.String()
	})
	b, err := os.ReadFile(file)
	if err != nil {
		return usageError{fmt.Errorf("read the configuration: %w", err)}
	}
	if err := decodeConfig(b, config); err != nil {
		return usageError{fmt.Errorf("configuration %s: %w", file, err)}
	}
	for name, value := range given {
		if err := cmd.Flags().Lookup(name).Value.Set(value); err != nil {
			return usageError{err}
		}
	}
	for name, list := range lists {
		if err := cmd.Flags().Lookup(name).Value.(pflag.SliceValue).Replace(list); err != nil {
			return usageError{err}
		}
	}
	return nil
}

// decodeConfig reads TOML. A key that does not exist is an error: it is a
// mistake that would otherwise stay unseen.
func decodeConfig(b []byte, config any) error {
	dec := toml.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(config)
	if strict, ok := err.(*toml.StrictMissingError); ok && len(strict.Errors) > 0 {
		return fmt.Errorf("there is no key %q", strict.Errors[0].Key())
	}
	return err
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective configuration, as a file to start from",
		Example: `  lighter config node > /etc/lighter/node.toml
  lighter config hub --config /etc/lighter/hub.toml`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			return usageError{fmt.Errorf("say which: lighter config node, or lighter config hub")}
		},
	}
	sub := func(name string, config any) *cobra.Command {
		var file string
		c := &cobra.Command{
			Use: name + " [flags]", Short: "Print the effective configuration of a " + name,
			Example: "  lighter config " + name + " > /etc/lighter/" + name + ".toml", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := effective(cmd, file, config); err != nil {
					return err
				}
				b, err := toml.Marshal(config)
				if err != nil {
					return err
				}
				_, err = os.Stdout.Write(b)
				return err
			},
		}
		c.Flags().StringVar(&file, "config", "", "the configuration `FILE` to complete with the defaults")
		return c
	}
	nodeConfig, hubConfig := node.DefaultConfig(), hub.DefaultConfig()
	cmd.AddCommand(sub("node", &nodeConfig), sub("hub", &hubConfig))
	return cmd
}
