package admin

import (
	"context"
	"net/http"

	"lighter/hub/answer"
	"lighter/wire"
)

// Events shows changes of images, and their deliveries to targets.
type Events interface {
	List(ctx context.Context, dead bool) (wire.EventLog, error)
	// Retry makes the dead deliveries of an event again, or all if id is empty.
	Retry(ctx context.Context, id string) (wire.Retried, error)
	// Watch calls send for each image, or each image of a name, and then for each change, until ctx
	// ends or send fails.
	Watch(ctx context.Context, name string, send func(wire.Event) error) error
}

func (s *Server) getEvents(_ http.ResponseWriter, req *http.Request) (any, error) {
	return s.Events.List(req.Context(), req.URL.Query().Get("dead") != "")
}

func (s *Server) retryEvents(_ http.ResponseWriter, req *http.Request) (any, error) {
	if err := answer.WantJSON(req); err != nil {
		return nil, err
	}
	return s.Events.Retry(req.Context(), req.URL.Query().Get("event"))
}

func (s *Server) watchImages(w http.ResponseWriter, req *http.Request) error {
	name, err := nameIn(req)
	if err != nil {
		return err
	}
	lines := newLines(w, wire.Event{Kind: wire.EventWait})
	defer lines.stop()
	err = s.Events.Watch(req.Context(), name, func(e wire.Event) error { return lines.line(e) })
	if lines.hasBegun() {
		return nil // the answer ends; the client connects again
	}
	return err
}
