package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/wire"
)

// If a request fails after its first line, its last line has the error's status: it is too late for
// the header. Status 500 is left out.
func TestLastLineHasTheStatusOfItsError(t *testing.T) {
	for want, err := range map[int]error{
		http.StatusBadRequest: answer.Invalid(errors.New("bad")), http.StatusNotFound: catalog.ErrNotFound,
		0: errors.New("the operation failed"),
	} {
		w := httptest.NewRecorder()
		p := newProgress(w)
		if err := p.send(wire.Progress{Step: "wait"}); err != nil {
			t.Fatal(err)
		}
		if err := p.end(wire.Progress{Done: true}, err); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(bytes.TrimSpace(w.Body.Bytes()), []byte("\n"))
		var last wire.Progress
		if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
			t.Fatal(err)
		}
		if w.Code != http.StatusOK || len(lines) != 2 || last.Error != err.Error() || last.Status != want {
			t.Errorf("%v: status %d, %d lines, the last %+v; want 200, 2 lines, the last with status %d", err, w.Code,
				len(lines), last, want)
		}
	}
}
