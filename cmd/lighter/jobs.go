package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"lighter/cmd/command"
	"lighter/sleep"
	"lighter/wire"
	"lighter/wire/client"
)

func jobsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs [flags]",
		Short: "List a hub's jobs, and cancel, pause or retry them",
		Long: `List a hub's running, queued and paused jobs, in this order, at most 1000. Jobs copy and
ingest images, verify them, make startup packs, and do the hub's own upkeep. A job
survives a restart of the hub. If the hub has several processes, each running job shows
the process that works on it. A job of a kind that the hub does not know waits for a hub
of another release; if there is none, cancel it.`,
		Example: `  lighter jobs
  lighter jobs --watch
  lighter jobs --ended --json | jq '.[] | select(.state == "failed")'
  lighter jobs cancel 17`,
		Args: command.Exactly(),
	}
	ended := cmd.Flags().Bool("ended", false,
		"list ended jobs instead: those of the last week, the latest first, at most 1000")
	again := cmd.Flags().Bool("watch", false, "print the list again each second, until Ctrl-C")
	newClient := hubClient(cmd)
	query(cmd, newClient, func(ctx context.Context, hub *client.Client, _ []string) ([]wire.Job, error) {
		return hub.Jobs(ctx, *ended)
	}, printJobs)
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := once(cmd, args)
		for err == nil && *again && sleep.For(cmd.Context(), time.Second) {
			if term.IsTerminal(int(os.Stdout.Fd())) {
				fmt.Print("\x1b[H\x1b[2J") // clear the screen
			}
			err = once(cmd, args)
		}
		if *again && cmd.Context().Err() != nil {
			return nil // Ctrl-C ends the list as intended
		}
		return err
	}
	cmd.AddCommand(
		jobCommand("cancel", "End a job, also while it runs", (*client.Client).CancelJob),
		jobCommand("pause", "Stop a job until it is retried", (*client.Client).PauseJob),
		jobCommand("retry", "Run a waiting, paused, failed or cancelled job as soon as possible",
			(*client.Client).RetryJob))
	return cmd
}

func printJobs(jobs []wire.Job) error {
	rows := rowsOf(jobs, func(j wire.Job) []any {
		return []any{j.N, j.Kind, shortened(j.Key), jobState(j), jobProgress(j), humanize.Time(j.Updated),
			short(cmp.Or(j.Owner, "-")), cmp.Or(j.Error, problemsOf(j))}
	})
	return table(os.Stdout, "JOB\tKIND\tABOUT\tSTATE\tDONE\tUPDATED\tPROCESS\tERROR", rows)
}

// jobState returns what happens to a job, and what comes next.
func jobState(j wire.Job) string {
	switch {
	case j.State == wire.JobQueued && j.Foreign:
		return "queued, for a hub of another release"
	case j.State == wire.JobQueued && time.Until(j.RunAt) > time.Second:
		return "queued, starts " + humanize.Time(j.RunAt)
	case j.State == wire.JobPaused:
		return "paused, until it is retried"
	case j.State != wire.JobRunning:
		return j.State
	}
	switch j.Request {
	case wire.JobCancel:
		return "running, is being cancelled"
	case wire.JobPause, wire.JobPauseAgain:
		return "running, is being paused"
	case wire.JobRestart:
		return "running, is being restarted"
	case wire.JobAgain:
		return "running, then once more"
	}
	return j.State
}

// problemsOf returns how many problems a verification has found; empty: none.
func problemsOf(j wire.Job) string {
	var found []string
	if j.Kind != "verify" || json.Unmarshal(j.Result, &found) != nil || len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("%d problems (see --json)", len(found))
}

// jobProgress returns how many bytes of a job's steps are done, and of how many; "-": not known.
func jobProgress(j wire.Job) string {
	var bytes, total int64
	for _, p := range j.Progress {
		bytes, total = bytes+p.Bytes, total+p.Total
	}
	if total == 0 {
		return "-"
	}
	return size(bytes) + " / " + size(total)
}

// jobCommand returns a command that changes one job.
func jobCommand(
	name, what string, change func(*client.Client, context.Context, int64) (wire.Job, error),
) *cobra.Command {
	cmd := &cobra.Command{
		Use:     name + " [flags] JOB",
		Short:   what,
		Long:    what + ". JOB is the number that `lighter jobs` shows.",
		Example: "  lighter jobs " + name + " 17",
		Args:    command.Exactly("JOB"),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wire.Job, error) {
		n, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return wire.Job{}, command.Usage(fmt.Errorf("job %q is not a number", args[0]))
		}
		return change(hub, ctx, n)
	}, func(j wire.Job) error { return printJobs([]wire.Job{j}) })
}
