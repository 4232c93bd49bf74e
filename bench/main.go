// Command bench measures Lighter against a full pull with overlayfs, with real
// containers on a site of its own (package site), and says for each figure of
// the project's table whether it is reached. README.md says what is measured,
// and how.
//
//	bench demo    three commands, cold, both ways; a table; out/demo.json
//	bench run     all figures; out/bench.json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"lighter/test/testkit/site"
)

const usage = `usage: bench demo [flags]
       bench run [flags]

bench demo runs three commands of a 1.2 GB image by full pull and through
Lighter, cold each time, and prints a table. bench run measures every figure;
it takes more than half an hour. Both need root, and what test/setup makes.

`

var errUsage = errors.New("say bench demo or bench run (see bench run --help)")

// options are the flags.
type options struct {
	command string
	lighter string
	out     string
	rounds  int
	only    []string
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	os.Exit(site.Enclosed(func() int {
		// Nothing of what was started may outlive an interrupt: it ends the measurement, and then the site.
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err := run(ctx, o)
		if ctx.Err() != nil {
			err = errors.New("interrupted") // the errors are those of what was cut off
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			return 1
		}
		return 0
	}))
}

func parse(args []string) (options, error) {
	var o options
	var only string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a mistake is one line, which main prints
	help := func() error {
		flags.SetOutput(os.Stdout)
		fmt.Print(usage)
		flags.PrintDefaults()
		return flag.ErrHelp
	}
	flags.StringVar(&o.lighter, "lighter", "bin/lighter", "the lighter `binary`")
	flags.StringVar(&o.out, "out", "out", "the `directory` of the results")
	flags.IntVar(&o.rounds, "rounds", 5, "how often each thing is measured")
	flags.StringVar(&only, "only", "", "measure these `figures` alone: "+strings.Join(figureNames(), ","))
	if len(args) == 0 {
		return o, errUsage
	}
	if args[0] == "--help" || args[0] == "-h" {
		return o, help()
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return o, help()
	} else if err != nil {
		return o, err
	}
	o.command = args[0]
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if !slices.Contains(figureNames(), name) {
			return o, fmt.Errorf("there is no figure %q: there are %s", name, strings.Join(figureNames(), ", "))
		}
	}
	if o.command != "demo" && o.command != "run" || flags.NArg() > 0 || o.rounds < 1 {
		return o, errUsage
	}
	return o, nil
}

// run starts the site, measures, and writes what was measured, also when
// something failed half-way.
func run(ctx context.Context, o options) (err error) {
	binary, err := filepath.Abs(o.lighter)
	if err != nil {
		return err
	}
	b := &bench{options: o}
	if b.workloads, err = readWorkloads(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if b.site, err = site.Start(ctx, site.Options{Lighter: binary}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.site.Close()) }()
	if o.command == "demo" {
		return b.demo(ctx)
	}
	return b.figures(ctx)
}
