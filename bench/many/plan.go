package many

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"lighter/format/chunk"
)

// Plan is what the process of the simulated nodes is told.
type Plan struct {
	Hub     string        `json:"hub"` // its URL
	Key     string        `json:"key"` // that the nodes pin
	Chains  []string      `json:"chains"`
	Tree    chunk.ID      `json:"tree"`
	Trace   []byte        `json:"trace"` // as package trace encodes it
	Nodes   int           `json:"nodes"`
	Spread  time.Duration `json:"spread"`  // within which the nodes start, evenly; 0: all at once
	Dir     string        `json:"dir"`     // empty; each node has a directory there
	Cache   int64         `json:"cache"`   // limit of each node's cache, in bytes
	Stream  int64         `json:"stream"`  // limit of what each node fetches of startup packs, in bytes; 0: none
	Counter string        `json:"counter"` // address of Squid's manager; empty: there is no Squid
}

// Outcome is what the process says of them. Times are in seconds.
type Outcome struct {
	Starts []Start   `json:"starts"`
	Reads  []float64 `json:"reads"` // every read of every node that succeeded
	Wall   float64   `json:"wall"`  // from the first start until nothing was fetched any more
	User   float64   `json:"user"`  // of this process, meanwhile
	System float64   `json:"system"`
	Memory int64     `json:"memory"` // the most that it had resident, in bytes
	Squid  Counters  `json:"squid"`
}

// Start is what one node's start took.
type Start struct {
	Began    float64 `json:"began"`         // after the first
	Pull     float64 `json:"pull"`          // look-ups, index and locations
	Done     float64 `json:"done"`          // the pull and all reads
	Refused  int     `json:"refused"`       // pulls of which a node would have unpacked the image; the simulated one pulls again
	Why      string  `json:"why,omitempty"` // the first of them was refused
	Reads    int     `json:"reads"`
	Requests int64   `json:"requests"` // of all kinds
	Bytes    int64   `json:"bytes"`    // of indexes, locations and units, as received
	Units    int64   `json:"units"`    // requests for units
	Retries  int64   `json:"retries"`  // of these, made again
	Failed   int64   `json:"failed"`   // requests, also for answers that were not what was asked for
	Error    string  `json:"error,omitempty"`
}

// readPlan reads what writePlan wrote.
func readPlan(path string) (p Plan, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("read the plan of the nodes: %w", err)
	}
	return p, nil
}

func (p Plan) write(path string) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
