package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lighter/buildinfo"
	"lighter/cmd/command"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/format/trace"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/node/takeover"
	"lighter/wire"
)

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version [flags]",
		Short: "Print the release, and the versions of formats and wire that it knows",
		Long: `Print which release this program is, from which commit and with which Go it was built,
and the numbers of the formats that it writes:

  index             a tree's index, and so the tree ID
  locations         where the chunks of an index are
  statement         the messages that a hub signs
  pack              packs and units
  layer-record      the entries of a layer that a hub keeps
  recordings        the files that starts have read, as exported
  node-state        what a node's daemon leaves to the next one
  catalog           the schema of a hub's database

A node and a hub work together if they know the same wire and the same index.
docs/format.md and docs/wire.md describe both.

The release of a program that was not built from a tag is a pseudo-version of Go: the date
and the commit. It ends with "+dirty" if the sources had changes that were not committed.
The program that runs as a node is named by "lighter status", and in the log and the
metrics (lighter_build_info) of nodes and hubs.`,
		Example: `  lighter version
  lighter version --json | jq -r .release`,
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			if asJSON {
				return printJSON(os.Stdout, v)
			}
			printVersion(v)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// version is what `lighter version` prints.
type version struct {
	buildinfo.Info
	Wire    int            `json:"wire"`
	Formats map[string]int `json:"formats"` // by formatNames
}

// formatNames are the names of the formats, in the order in which they are printed.
var formatNames = []string{"index", "locations", "statement", "pack", "layer-record", "recordings", "node-state",
	"catalog"}

func thisVersion() version {
	return version{Info: buildinfo.Read(), Wire: wire.Version, Formats: map[string]int{
		"index": index.Format, "locations": index.LocationsFormat, "statement": index.StatementFormat,
		"pack": pack.Format, "layer-record": tree.RecordFormat, "recordings": trace.RecordingsFormat,
		"node-state": takeover.StateVersion(), "catalog": int(catalog.Schema())}}
}

func printVersion(v version) {
	commit := "unknown: it was built without git's history"
	if v.Commit != "" {
		commit = v.Commit + ", of " + v.Committed
	}
	if v.Modified {
		commit += ", and the sources were modified"
	}
	var formats []string
	for _, name := range formatNames {
		formats = append(formats, name+" "+strconv.Itoa(v.Formats[name]))
	}
	fmt.Printf("release   %s\ncommit    %s\nbuilt     by %s, for %s/%s\nwire      %d\nformats   %s\n",
		v.Release, commit, v.Go, v.OS, v.Arch, v.Wire, strings.Join(formats, ", "))
}
