package figures

import "lighter/bench"

// A row is one line of out/demo.json.
type row struct {
	Workload string  `json:"workload"`
	Mode     string  `json:"mode"`    // "overlayfs" or "lighter", or another program that is compared
	PullS    float64 `json:"pull_s"`  // seconds
	RunS     float64 `json:"run_s"`   // create and run, seconds
	TotalS   float64 `json:"total_s"` // seconds
	Bytes    int64   `json:"bytes"`   // over the link
}

func rowOf(c bench.Start, mode string, w bench.Workload) row {
	return row{Workload: w.Name, Mode: mode, PullS: c.Pull, RunS: c.Create + c.Run, TotalS: c.Total(), Bytes: c.Bytes}
}

// A benchRow is one line of out/bench.json: the medians of several rounds.
type benchRow struct {
	row
	Image      string             `json:"image"`
	Rounds     int                `json:"rounds"`
	TotalMin   float64            `json:"total_min_s"`
	TotalMax   float64            `json:"total_max_s"`
	CreateS    float64            `json:"create_s,omitempty"`
	SecondS    float64            `json:"second_s,omitempty"`         // create and run of a second container
	PullBytes  int64              `json:"pull_bytes,omitempty"`       // received over the link during the pull
	Compressed int64              `json:"compressed_bytes,omitempty"` // of the image's layers
	Values     map[string]float64 `json:"values,omitempty"`           // other values; the name ends in the unit
}
