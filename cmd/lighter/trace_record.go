package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/control"
	"lighter/node/ondemand"
)

func traceRecordCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "record [flags] IMAGE",
		Short: "Record the next start of an image on this machine",
		Long: `Record what the next start of an image on this machine reads, also if the node records
nothing by itself. The command waits until a container is started and has read nothing
for 10 seconds (2 minutes at most). Then it sends the trace to the hub, or writes it to
a file (--output) for "lighter trace import", "lighter attach" or "lighter export". If
interrupted, it records nothing.

Pages in memory are not read again. So the node mounts the image once more, for
containers that start from now on. The trace also contains what other containers of
the image read meanwhile.

IMAGE is a name that "lighter status" shows: a reference or its end, a chain or a tree,
or the first digits of these.`,
		Example: `  lighter trace record registry.example.org/tools/shell:1 &
  ctr run --rm --snapshotter lighter registry.example.org/tools/shell:1 one sh -c true
  lighter trace record --output shell.trace tools/shell:1`,
		Args: command.Exactly("IMAGE"),
	}
	output := cmd.Flags().StringP("output", "o", "", "write the trace to `FILE` instead of sending it")
	return nodeQuery(cmd, func(ctx context.Context, node *control.Client, args []string) (ondemand.Progress, error) {
		recorded, err := recordStart(ctx, node, args[0], *output)
		recorded.Text = ""
		return recorded, err
	}, func(recorded ondemand.Progress) error {
		to := "sent to the hub"
		if *output != "" {
			to = "written to " + *output
		}
		fmt.Printf("%s in %d parts, %s\n", size(recorded.Bytes), recorded.Reads, to)
		return nil
	})
}

// recordStart records a start, and writes it to the file output, if that is not empty.
func recordStart(ctx context.Context, node *control.Client, name, output string,
) (last ondemand.Progress, err error) {
	var file *os.File
	if output != "" { // before the wait
		if file, err = os.OpenFile(output, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err != nil {
			return last, fmt.Errorf("write the trace: %w (choose another --output)", err)
		}
		defer func() {
			if err = errors.Join(err, file.Close()); err != nil {
				err = errors.Join(err, os.Remove(output))
			}
		}()
	}
	fmt.Fprintf(os.Stderr, "waiting for a start of %s\n", name)
	err = node.Record(ctx, name, file != nil, func(at ondemand.Progress) {
		if last.Reads == 0 && at.Reads > 0 {
			fmt.Fprintf(os.Stderr, "%s starts\n", name)
		}
		last = at
	})
	if ctx.Err() != nil {
		return last, errors.New("interrupted: nothing was recorded")
	}
	if err == nil && file != nil {
		_, err = file.WriteString(last.Text)
	}
	return last, err
}
