package many

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"lighter/format/chunk"
)

// Plan is the input of the process that simulates the nodes.
type Plan struct {
	Hub     string        `json:"hub"` // URL of the hub
	Key     string        `json:"key"` // the hub's key, pinned by the nodes
	Chains  []string      `json:"chains"`
	Tree    chunk.ID      `json:"tree"`
	Trace   []byte        `json:"trace"` // as package trace encodes it
	Nodes   int           `json:"nodes"`
	Spread  time.Duration `json:"spread"`  // time over which the starts are spread evenly; 0: all at once
	Dir     string        `json:"dir"`     // an empty directory, for a directory of each node
	Cache   int64         `json:"cache"`   // limit of each node's cache, in bytes
	Stream  int64         `json:"stream"`  // limit of the startup packs that each node fetches, in bytes; 0: none
	Counter string        `json:"counter"` // address of Squid's manager; empty: there is no Squid
}

// Outcome is the output of the process that simulates the nodes. Times are in seconds.
type Outcome struct {
	Starts []Start   `json:"starts"`
	Reads  []float64 `json:"reads"` // durations of all successful reads of all nodes
	Wall   float64   `json:"wall"`  // from the first start to the end of the last fetch
	User   float64   `json:"user"`  // processor time of this process meanwhile
	System float64   `json:"system"`
	Memory int64     `json:"memory"` // peak resident memory, in bytes
	Squid  Counters  `json:"squid"`
}

// Start holds the figures of one node's start.
type Start struct {
	Began float64 `json:"began"` // since the first node's start
	Pull  float64 `json:"pull"`  // lookups, index and locations
	Done  float64 `json:"done"`  // the pull and all reads
	// Refused counts pulls after which a real node would have unpacked the image. The simulated
	// node pulls again.
	Refused  int    `json:"refused"`
	Why      string `json:"why,omitempty"` // reason of the first refusal
	Reads    int    `json:"reads"`
	Requests int64  `json:"requests"` // of all kinds
	Bytes    int64  `json:"bytes"`    // of indexes, locations and units, as received
	Units    int64  `json:"units"`    // requests for units
	Retries  int64  `json:"retries"`  // repeated requests for units
	Failed   int64  `json:"failed"`   // failed requests, and those with a wrong answer
	Error    string `json:"error,omitempty"`
}

// readPlan reads a plan from a file that Plan.write has written.
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
