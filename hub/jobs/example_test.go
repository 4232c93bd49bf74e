package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/wire"
)

// A process runs the jobs of a kind, and a client waits for one of them. Any process of the hub may
// have added it.
func Example() {
	if err := greet(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// hello world
	// done
}

func greet(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "jobs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := catalog.Open(ctx, catalog.Place{Source: filepath.Join(dir, "catalog.db")})
	if err != nil {
		return err
	}
	defer c.Close()

	runner := jobs.NewRunner()
	q := runner.Queue(c.Jobs, "this process", slog.New(slog.DiscardHandler))
	q.Add(jobs.Kind{Name: "greeting", AtOnce: 1, Run: func(_ context.Context, j *jobs.Running) error {
		fmt.Printf("hello %s\n", j.Payload)
		return nil
	}})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(running) }()

	n, err := c.Jobs.Add(ctx, catalog.Job{Kind: "greeting", Key: "first", Payload: []byte("world")}, 0)
	if err == nil {
		q.Changed("greeting", "first")
		sender := report.NewSender(func(wire.Progress) error { return nil })
		err = q.Await(ctx, "greeting", "first", sender, func(ctx context.Context) (bool, error) {
			j, err := c.Jobs.Get(ctx, n)
			return err != nil || j.State == wire.JobDone, err
		})
	}
	if err == nil {
		fmt.Println("done")
	}
	stop()
	if runErr := <-ended; !errors.Is(runErr, context.Canceled) {
		err = errors.Join(err, runErr)
	}
	return err
}
