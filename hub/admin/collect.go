package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/wire"
)

// Collector frees what no image needs.
type Collector interface {
	// Start begins a collection, unless one is running. It returns the collection's job.
	Start(ctx context.Context) (catalog.Job, error)
	// Await waits until a collection's job has ended, and calls report for each step.
	Await(ctx context.Context, job int64, report func(wire.Progress) error) (*wire.Collection, error)
	// Plan returns what a collection would do.
	Plan(ctx context.Context) (*wire.Collection, error)
}

func (s *Server) postCollection(_ http.ResponseWriter, req *http.Request) (any, error) {
	if err := answer.WantJSON(req); err != nil {
		return nil, err
	}
	j, err := s.Collector.Start(req.Context())
	if err != nil {
		return nil, err
	}
	return s.describeJob(j)
}

func (s *Server) awaitCollection(w http.ResponseWriter, req *http.Request) error {
	job, err := awaitedJob(req)
	if err != nil {
		return err
	}
	p := newProgress(w)
	done, err := s.Collector.Await(req.Context(), job, p.send)
	return p.end(wire.Progress{Done: true, Collection: done}, err)
}

// awaitedJob returns the number of the job that a request waits for.
func awaitedJob(req *http.Request) (int64, error) {
	if err := answer.WantJSON(req); err != nil {
		return 0, err
	}
	job, err := strconv.ParseInt(req.URL.Query().Get("job"), 10, 64)
	if err != nil {
		return 0, answer.Invalid(errors.New("job is not a number"))
	}
	return job, nil
}

func (s *Server) planCollection(w http.ResponseWriter, req *http.Request) error {
	if err := answer.WantJSON(req); err != nil {
		return err
	}
	p := newProgress(w)
	plan, err := s.Collector.Plan(req.Context())
	if err == nil {
		plan.Images, err = s.verdicts(req.Context())
		plan.Images = slices.DeleteFunc(plan.Images, func(v wire.Verdict) bool { return v.Then == wire.VerdictStays })
	}
	return p.end(wire.Progress{Done: true, Collection: plan}, err)
}
