package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lighter/wire"
)

// The commands about events ask for what their flags say, and print what the hub answers.
func TestEventCommands(t *testing.T) {
	ready := wire.Event{ID: "e1", Kind: wire.StateReady, Name: "team/app:1", At: time.Now()}
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var answer any
		switch query := req.URL.Query(); {
		case strings.HasSuffix(req.URL.Path, "/retry"):
			answer = wire.Retried{Deliveries: int64(len(query.Get("event")))}
		case strings.HasSuffix(req.URL.Path, "/watch"):
			answer = ready
		case query.Get("dead") != "":
			answer = wire.EventLog{Deliveries: []wire.Delivery{{Target: "ci", Event: ready, Dead: time.Now()}}}
		default:
			answer = wire.EventLog{Events: []wire.Event{ready}}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer hub.Close()
	for command, want := range map[string]string{
		"events":                "team/app:1",
		"events --json":         `"name": "team/app:1"`,
		"events --dead":         "none: it is dead",
		"events retry e1":       "2 deliveries are made again",
		"images --watch --json": `"kind":"ready"`,
	} {
		_, out, errs := lighter(t, append(strings.Fields(command), "--hub", hub.URL)...)
		if !strings.Contains(out, want) {
			t.Errorf("lighter %s prints %q, %q, want %q", command, out, errs, want)
		}
	}
}
