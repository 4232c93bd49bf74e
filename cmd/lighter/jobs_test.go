package main

import (
	"testing"
	"time"

	"lighter/wire"
)

func TestJobState(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for want, j := range map[string]wire.Job{
		"queued":                             {State: wire.JobQueued},
		"queued, starts 59 minutes from now": {State: wire.JobQueued, RunAt: later},
		"running":                            {State: wire.JobRunning, RunAt: later},
		"running, is being cancelled":        {State: wire.JobRunning, Request: wire.JobCancel},
		"running, is being paused":           {State: wire.JobRunning, Request: wire.JobPauseAgain},
		"running, then once more":            {State: wire.JobRunning, Request: wire.JobAgain},
		"paused, until it is retried":        {State: wire.JobPaused},
		"failed":                             {State: wire.JobFailed, RunAt: later},
	} {
		if got := jobState(j); got != want {
			t.Errorf("state %q, want %q", got, want)
		}
	}
}
