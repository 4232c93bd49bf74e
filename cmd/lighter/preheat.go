package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/control"
	"lighter/node/preheat"
	"lighter/nodejobs"
	"lighter/wire"
)

// defaultPreheatTimeout bounds the work on one node.
const defaultPreheatTimeout = time.Hour

func preheatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "preheat [flags] IMAGE",
		Short: "Fetch what an image's start reads before a container needs it",
		Long: fmt.Sprintf(`Fetch an image's startup packs into the cache of this machine's node, so that its first
container here reads from the disk what other starts have read. --all fetches the whole
image. The image must be on the hub; it need not have been pulled. The chunks may be
evicted like any others: "lighter cache pin" keeps those of an image that was pulled.

--nodes does this on nodes of a Kubernetes cluster: kubectl makes a job for each selected
node, in the namespace and with the image of Lighter's daemon set. The jobs are removed at
the end. A job whose pod does not start, for example because its image cannot be pulled,
has failed after %d minutes; the reason is shown before. If a job has failed, the exit code
is 1. The user of kubectl has to be allowed to list nodes and daemon sets, to create, get,
list and delete jobs in that namespace, and to list pods and events and get logs there:
docs/runtimes/kubernetes.md.`, int(nodejobs.StartTimeout.Minutes())),
		Example: `  lighter preheat registry.example.org/tools/shell:1
  lighter preheat --all --json registry.example.org/tools/shell:1
  lighter preheat --nodes pool=gpu registry.example.org/tools/shell:1`,
		Args: command.Exactly("IMAGE"),
	}
	var there nodejobs.Options
	f := cmd.Flags()
	root := rootFlag(cmd)
	all := f.Bool("all", false, "fetch the whole image")
	platform := f.String("platform", "", "the `OS/ARCH[/VARIANT]` to fetch; default: each machine's own")
	asJSON := f.Bool("json", false, "print JSON")
	nodes := f.String("nodes", "", "the nodes of a cluster: a label `SELECTOR` of kubectl, or all")
	f.StringVar(&there.Context, "context", "", "with --nodes: the `NAME` of the context in kubectl's configuration")
	f.StringVar(&there.Namespace, "namespace", "", "with --nodes: the jobs' `NAMESPACE`; default: the daemon set's")
	f.StringVar(&there.Image, "image", "", "with --nodes: the installer's `IMAGE`; default: the daemon set's")
	f.DurationVar(&there.Timeout, "timeout", defaultPreheatTimeout, "with --nodes: the longest `TIME` on a node")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := wire.ParseName(args[0]); err != nil {
			return command.Usage(err)
		}
		if *nodes == "" {
			p, err := preheatHere(cmd.Context(), control.New(*root), args[0], *platform, *all)
			if err == nil {
				err = show(*asJSON, p, printPreheated)
			}
			return err
		}
		if *nodes != "all" {
			there.Selector = *nodes
		}
		there.Root = *root
		there.Args = []string{"preheat", "--json", fmt.Sprintf("--all=%t", *all), "--platform=" + *platform, args[0]}
		return preheatNodes(cmd.Context(), there, *asJSON)
	}
	return cmd
}

// show prints an answer as JSON or with print.
func show[T any](asJSON bool, answer T, print func(T) error) error {
	if asJSON {
		return printJSON(os.Stdout, answer)
	}
	return print(answer)
}

// preheatNodes preheats an image on nodes of a cluster. It fails if it has failed on one of them.
func preheatNodes(ctx context.Context, o nodejobs.Options, asJSON bool) error {
	results, err := nodejobs.Run(ctx, o, func(r nodejobs.Result) {
		fmt.Fprintln(os.Stderr, strings.TrimSuffix(fmt.Sprintf("%s %s: %s", r.Node, r.State, r.Error), ": "))
	})
	if err != nil {
		return err
	}
	failed := 0
	for _, r := range results {
		if r.State == nodejobs.Failed {
			failed++
		}
	}
	err = show(asJSON, results, func([]nodejobs.Result) error {
		return table(os.Stdout, "NODE\tSTATE\tCACHED\tERROR", rowsOf(results, func(r nodejobs.Result) []any {
			var p preheat.Progress
			cached := "-"
			if json.Unmarshal(r.Answer, &p) == nil {
				cached = size(p.Cached)
			}
			return []any{r.Node, r.State, cached, r.Error}
		}))
	})
	if err == nil && failed > 0 {
		err = fmt.Errorf("preheat: failed on %d of %d nodes", failed, len(results))
	}
	return err
}

// preheatHere preheats an image on this machine's node.
func preheatHere(
	ctx context.Context, node *control.Client, name, platform string, all bool,
) (last preheat.Progress, err error) {
	p := newProgress()
	defer p.end()
	err = node.Preheat(ctx, name, platform, all, func(at preheat.Progress) {
		last = at
		if at.All > 0 {
			p.show(wire.Progress{Step: "fetch", Item: name, Bytes: at.Cached, Total: at.All})
		}
	})
	return last, err
}

func printPreheated(p preheat.Progress) error {
	if p.All == 0 {
		fmt.Fprintf(os.Stderr, "the hub has no startup pack of %s (%s), so nothing was fetched: "+
			"--all fetches the whole image\n", p.Image, p.Platform)
		return nil
	}
	fmt.Printf("%s (%s): %s are cached\n", p.Image, p.Platform, size(p.Cached))
	return nil
}
