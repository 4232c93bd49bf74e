package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lighter/cmd/command"
	"lighter/hub"
	"lighter/hub/retention"
	"lighter/node"
)

// effective makes config the effective configuration: the file overrides the defaults, and flags
// that were given override the file. Before the call config holds defaults and flags.
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
		return command.Usage(fmt.Errorf("read the configuration: %w", err))
	}
	if err := decodeConfig(b, config); err != nil {
		return command.Usage(fmt.Errorf("configuration %s: %w", file, err))
	}
	for name, value := range given {
		if err := cmd.Flags().Lookup(name).Value.Set(value); err != nil {
			return command.Usage(err)
		}
	}
	for name, list := range lists {
		if err := cmd.Flags().Lookup(name).Value.(pflag.SliceValue).Replace(list); err != nil {
			return command.Usage(err)
		}
	}
	return nil
}

// loadConfig makes the effective configuration, and checks it.
func loadConfig(cmd *cobra.Command, file string, config interface{ Check() error }) error {
	if err := effective(cmd, file, config); err != nil {
		return err
	}
	if err := config.Check(); err != nil {
		if wrong := (*retention.RuleError)(nil); errors.As(err, &wrong) && file != "" {
			err = fmt.Errorf("configuration %s: line %d: %w", file, lineOfRule(file, wrong.Rule), err)
		}
		return command.Usage(err)
	}
	return nil
}

// lineOfRule returns the line in a file where a retention rule begins, or 0.
func lineOfRule(file string, rule int) int {
	b, _ := os.ReadFile(file) // it was read before
	n := 0
	for line := range strings.Lines(string(b)) {
		if n++; strings.HasPrefix(strings.ReplaceAll(line, " ", ""), "[[retention]]") {
			if rule--; rule == 0 {
				return n
			}
		}
	}
	return 0
}

// decodeConfig reads TOML. An unknown key is an error, because a misspelt key would have no effect.
func decodeConfig(b []byte, config any) error {
	dec := toml.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(config)
	var missing *toml.StrictMissingError
	var wrong *toml.DecodeError
	switch {
	case errors.As(err, &missing) && len(missing.Errors) > 0:
		line, _ := missing.Errors[0].Position()
		key := strings.Join(missing.Errors[0].Key(), ".")
		if c, ok := config.(interface{ GivenUp(key string) string }); ok && c.GivenUp(key) != "" {
			return fmt.Errorf("line %d: key %q is not used any more: write %s", line, key, c.GivenUp(key))
		}
		return fmt.Errorf("line %d: unknown key %q", line, key)
	case errors.As(err, &wrong):
		line, _ := wrong.Position()
		said := strings.TrimPrefix(wrong.Error(), "toml: ")
		said = wrongType.ReplaceAllString(said, "it is of type $1, and has to be of type $2")
		if key := strings.Join(wrong.Key(), "."); key != "" {
			said = key + ": " + said
		}
		return fmt.Errorf("line %d: %s", line, said)
	}
	return err
}

// wrongType matches the library's text, which names identifiers of this program.
var wrongType = regexp.MustCompile(`^cannot decode TOML (\S+) into struct field \S+ of type (\S+)$`)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective configuration, as a file to start from",
		Example: `  lighter config node > /etc/lighter/node.toml
  lighter config hub --config /etc/lighter/hub.toml`,
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			return command.Usage(fmt.Errorf("name the configuration: lighter config node or lighter config hub"))
		},
	}
	nodeConfig, hubConfig := node.DefaultConfig(), hub.DefaultConfig()
	nodeFile, hubFile := "", ""
	forNode, forHub := configOf("node", &nodeConfig, &nodeFile), configOf("hub", &hubConfig, &hubFile)
	nodeFlags(forNode, &nodeConfig, &nodeFile)
	hubServerFlags(forHub, &hubConfig, &hubFile)
	cmd.AddCommand(forNode, forHub)
	return cmd
}

// configOf returns the command that prints a configuration, with the values of a file.
func configOf(name string, config interface{ Check() error }, file *string) *cobra.Command {
	return &cobra.Command{
		Use: name + " [flags]", Short: "Print the effective configuration of a " + name,
		Long: strings.ReplaceAll(`Print the configuration that "lighter NAME" would have with these flags: every key,
with its explanation. Invalid values are refused.`, "NAME", name),
		Example: strings.ReplaceAll(`  lighter config NAME > /etc/lighter/NAME.toml
  lighter config NAME --config /etc/lighter/NAME.toml --log-level debug`, "NAME", name),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loadConfig(cmd, *file, config); err != nil {
				return err
			}
			value := func(flag string) string { return cmd.Flags().Lookup(flag).Value.String() } // with the file's
			if _, err := logFormat(value("log-level"), value("log-format")); err != nil {
				return err
			}
			text, err := configText(config)
			if err != nil {
				return err
			}
			_, err = os.Stdout.WriteString(text)
			return err
		},
	}
}

// configText returns a configuration as a file to start from.
func configText(config any) (string, error) {
	b, err := toml.Marshal(config)
	return readable(string(b)), err
}

// emptyTables matches an empty list of tables. In a file with that line, no table can be added.
var emptyTables = regexp.MustCompile(`^(retention|quota|domain|event|hook) = \[\]\n$`)

// readable wraps the comments of a configuration, and puts a blank line between keys. Instead of
// empty lists of tables it prints how a table begins.
func readable(config string) string {
	const width = 100
	var out strings.Builder
	before := "#"
	for line := range strings.Lines(config) {
		comment, isComment := strings.CutPrefix(line, "# ")
		if isComment && !strings.HasPrefix(before, "#") && before != "\n" {
			out.WriteString("\n")
		}
		before = line
		if !isComment {
			out.WriteString(emptyTables.ReplaceAllString(line, "# [[$1]]\n"))
			continue
		}
		column := 0
		for _, word := range strings.Fields(comment) {
			if column == 0 || column+1+len(word) > width {
				out.WriteString(strings.Repeat("\n", min(column, 1)) + "#")
				column = 1
			}
			out.WriteString(" " + word)
			column += 1 + len(word)
		}
		out.WriteString("\n")
	}
	return out.String()
}
