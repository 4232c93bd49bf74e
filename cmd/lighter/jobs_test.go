package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lighter/cmd/command"
	"lighter/test/testkit/printed"
	"lighter/wire"
)

func TestJobState(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for want, j := range map[string]wire.Job{
		"queued":                               {State: wire.JobQueued},
		"queued, for a hub of another release": {State: wire.JobQueued, RunAt: later, Foreign: true},
		"queued, starts 59 minutes from now":   {State: wire.JobQueued, RunAt: later},
		"running":                              {State: wire.JobRunning, RunAt: later},
		"running, is being cancelled":          {State: wire.JobRunning, Request: wire.JobCancel},
		"running, is being paused":             {State: wire.JobRunning, Request: wire.JobPauseAgain},
		"running, then once more":              {State: wire.JobRunning, Request: wire.JobAgain},
		"paused, until it is retried":          {State: wire.JobPaused},
		"failed":                               {State: wire.JobFailed, RunAt: later},
	} {
		if got := jobState(j); got != want {
			t.Errorf("state %q, want %q", got, want)
		}
	}
}

// Ctrl-C ends a watched list, also during a request. That is no failure.
func TestWatchedListIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		cancel()
		<-req.Context().Done()
	}))
	defer hub.Close()
	code := -1
	_, stderr := printed.By(t, func() {
		code = command.Run(ctx, rootCommand(), []string{"jobs", "--watch", "--hub", hub.URL}, exitCode)
	})
	if code != 0 || stderr != "" {
		t.Errorf("exit %d, %q; want 0 and no error", code, stderr)
	}
}
