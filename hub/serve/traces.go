package serve

import (
	"io"
	"net/http"

	"lighter/format/chunk"
	"lighter/format/trace"
)

func (s *Server) postTrace(w http.ResponseWriter, req *http.Request) error {
	tree, err := chunk.ParseID(req.PathValue("tree"))
	if err != nil {
		return invalid(err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, trace.MaxBytes))
	if err != nil {
		return invalid(err)
	}
	if err := s.starts.Take(req.Context(), tree, body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
