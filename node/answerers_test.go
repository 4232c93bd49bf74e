package node

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"lighter/durable"
	"lighter/node/direct"
)

// The answerers are those of the configured sources, in their order. Formats that follow each other
// share one.
func TestAnswerers(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	url := []string{"http://127.0.0.1:1"}
	const hub, images = "resolver.hubAnswerer", "*direct.answerer"
	for _, c := range []struct{ sources, hubs, direct, want []string }{
		{DefaultConfig().Sources, url, []string{"**"}, []string{hub, images}},
		{DefaultConfig().Sources, url, nil, []string{hub}},
		{DefaultConfig().Sources, nil, []string{"**"}, []string{images}},
		{[]string{"tables", "hub", "soci"}, url, []string{"**"}, []string{images, hub, images}},
		{[]string{"soci"}, url, []string{"**"}, []string{images}},
	} {
		n := &Node{log: log, direct: direct.Closed(direct.Config{Leftovers: &durable.Leftovers{Log: log}, Log: log})}
		n.config.Sources, n.config.Hubs, n.config.Direct = c.sources, c.hubs, c.direct
		var err error
		if n.hubs, err = n.config.origins(log); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range n.answerers() {
			got = append(got, fmt.Sprintf("%T", a))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("sources %q, hubs %q, direct %q: answerers %q, want %q", c.sources, c.hubs, c.direct, got, c.want)
		}
	}
}
