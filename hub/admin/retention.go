package admin

import (
	"context"
	"net/http"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/retention"
	"lighter/wire"
)

// Retention applies the retention rules, and shows what they would remove.
type Retention interface {
	Plan(ctx context.Context) ([]retention.Verdict, error)
	Start(ctx context.Context, confirmed []string) (catalog.Job, error)
}

func (s *Server) getRetention(_ http.ResponseWriter, req *http.Request) (any, error) {
	return s.verdicts(req.Context())
}

// verdicts returns what the retention rules say about all images.
func (s *Server) verdicts(ctx context.Context) ([]wire.Verdict, error) {
	verdicts, err := s.Retention.Plan(ctx)
	list := make([]wire.Verdict, len(verdicts)) // never null
	for i, v := range verdicts {
		list[i] = wire.Verdict{Name: v.Name, Repository: v.Repository, Then: v.Then, Why: v.Why, Pushed: v.Pushed.UTC(),
			Bytes: v.Bytes}
		if !v.Used.IsZero() {
			list[i].Used = v.Used.UTC()
		}
	}
	return list, err
}

func (s *Server) postRetention(_ http.ResponseWriter, req *http.Request) (any, error) {
	if err := answer.WantJSON(req); err != nil {
		return nil, err
	}
	j, err := s.Retention.Start(req.Context(), req.URL.Query()["confirm"])
	if err != nil {
		return nil, err
	}
	return s.describeJob(j)
}
