package origin_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/store/origin"
	"lighter/wire/client"
)

// A unit comes from the first origin that gives it. Here the preferred one is broken.
func ExampleFailover() {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer broken.Close()
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "an encoded unit")
	}))
	defer mirror.Close()

	log := slog.New(slog.DiscardHandler)
	hubs, err := origin.New(log, client.Options{URL: broken.URL}, client.Options{URL: mirror.URL})
	if err != nil {
		panic(err)
	}
	err = hubs.FetchUnit(context.Background(), chunk.Unit{}, func(a store.Answer) error {
		body, err := io.ReadAll(a.Body)
		if err != nil {
			return err
		}
		// If the answer fails verification, return an error that wraps a *chunk.InvalidError. Then
		// the next origin is asked.
		fmt.Println(string(body))
		return nil
	})
	if err != nil {
		panic(err)
	}
	for _, h := range hubs.Health() {
		fmt.Println("up:", h.Up)
	}
	// Output:
	// an encoded unit
	// up: false
	// up: true
}
