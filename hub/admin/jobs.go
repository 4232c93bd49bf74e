package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/wire"
)

// maxJobs bounds the jobs in an answer.
const maxJobs = 1000

// Jobs changes jobs. The hub's queue implements it.
type Jobs interface {
	// Each method returns the job after the change. The error wraps catalog.ErrNotFound if the job
	// does not exist or has ended in another way.
	Cancel(ctx context.Context, n int64) (catalog.Job, error)
	Pause(ctx context.Context, n int64) (catalog.Job, error)
	Retry(ctx context.Context, n int64) (catalog.Job, error)
	// Kinds returns the kinds of jobs that this process runs.
	Kinds() []string
}

func (s *Server) getJobs(_ http.ResponseWriter, req *http.Request) (any, error) {
	jobs, err := s.Catalog.Jobs.List(req.Context(), req.URL.Query().Get("ended") != "", maxJobs)
	if err != nil {
		return nil, err
	}
	list := make([]wire.Job, len(jobs)) // never null
	for i, j := range jobs {
		if list[i], err = s.describeJob(j); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (s *Server) describeJob(j catalog.Job) (wire.Job, error) {
	d := wire.Job{N: j.N, Kind: j.Kind, Key: j.Key, State: j.State, Request: j.Request, Priority: j.Priority,
		Attempts: j.Attempts, Owner: j.Owner, Error: j.Error, RunAt: j.RunAt.UTC(), Created: j.Created.UTC(),
		Updated: j.Updated.UTC(), Foreign: !slices.Contains(s.Jobs.Kinds(), j.Kind)}
	if len(j.Result) > 0 {
		d.Result = j.Result
	}
	if len(j.Progress) == 0 {
		return d, nil
	}
	if err := json.Unmarshal(j.Progress, &d.Progress); err != nil {
		return d, fmt.Errorf("parse the progress of job %d: %w", j.N, err)
	}
	return d, nil
}

// changeJob returns a handler that changes one job.
func (s *Server) changeJob(
	change func(ctx context.Context, n int64) (catalog.Job, error),
) func(http.ResponseWriter, *http.Request) (any, error) {
	return func(_ http.ResponseWriter, req *http.Request) (any, error) {
		if err := answer.WantJSON(req); err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(req.URL.Query().Get("job"), 10, 64)
		if err != nil {
			return nil, answer.Invalid(errors.New("job is not a number"))
		}
		j, err := change(req.Context(), n)
		if err != nil {
			return nil, err
		}
		return s.describeJob(j)
	}
}
