package figures

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// verification maps kinds of work to their share of the node's processor time, in percent.
type verification map[string]float64

// Functions of each kind of verification in a profile.
var verifiers = map[string]string{
	"crypto/internal/fips140/sha256": "SHA-256",
	"hash/crc32":                     "CRC32C",
}

// verify measures the share of the node's processor time that verification takes, on a first read
// and with all chunks in the node's cache.
func (r *run) verify(ctx context.Context) error {
	if err := r.Need(ctx, largestImage); err != nil {
		return err
	}
	shares := map[string][]verification{}
	for range r.Rounds {
		if err := r.verifyRound(ctx, shares); err != nil {
			return err
		}
	}
	for _, what := range []string{"first read", "cached read"} {
		values := map[string]float64{}
		for _, name := range verifiers {
			values[name+"_percent"] = bench.MedianOf(shares[what], func(v verification) float64 { return v[name] })
		}
		r.rows = append(r.rows, benchRow{row: row{Workload: "verification: " + what, Mode: site.Lighter},
			Image: largestImage, Rounds: r.Rounds, Values: values})
		r.verdicts = append(r.verdicts, verdict{Figure: "verify",
			What: "share of verification in the node's processor time, " + what, Unit: "%", Result: noTarget,
			Value: values["SHA-256_percent"] + values["CRC32C_percent"],
			Note:  fmt.Sprintf("SHA-256 %.1f %%, CRC32C %.1f %%", values["SHA-256_percent"], values["CRC32C_percent"])})
	}
	return nil
}

func (r *run) verifyRound(ctx context.Context, shares map[string][]verification) (err error) {
	c, files, err := r.freshLargest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx)) }()
	for _, what := range []string{"first read", "cached read"} {
		if err := site.DropCaches(); err != nil {
			return err
		}
		v, err := r.profiled(ctx, func() error {
			var content reader
			_, err := content.read(c.Root, files.largest)
			return err
		})
		if err != nil {
			return err
		}
		bench.Say("%s: SHA-256 %.1f %%, CRC32C %.1f %% of the node's time", what, v["SHA-256"], v["CRC32C"])
		shares[what] = append(shares[what], v)
	}
	return nil
}

// profileTime is the duration of a profile, in seconds. Reads that take less time do not distort
// the profile, because it counts only processor time.
const profileTime = 6

// profiled calls fn. It returns the shares of verification in the node's processor time during the
// first profileTime seconds.
func (r *run) profiled(ctx context.Context, fn func() error) (verification, error) {
	type result struct {
		profile []byte
		err     error
	}
	taken := make(chan result, 1)
	go func() {
		p, err := r.Site.Machine.NodeProfile(ctx, fmt.Sprintf("profile?seconds=%d", profileTime))
		taken <- result{p, err}
	}()
	took, err := timed(fn)
	got := <-taken
	if err := errors.Join(err, got.err); err != nil {
		return nil, err
	}
	if took > profileTime {
		bench.Say("the profile covers only the first %d s of %s", profileTime, bench.Seconds(took))
	}
	path := filepath.Join(r.Site.Dir, "profile")
	if err := os.WriteFile(path, got.profile, 0o644); err != nil {
		return nil, err
	}
	top, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0",
		path).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w", err)
	}
	return sharesOf(top)
}

// sharesOf adds up the flat percentages of the verifiers' functions in the output of pprof -top:
//
//	flat  flat%   sum%        cum   cum%
//	1.10s 12.20% 64.86%      1.2s 12.20%  hash/crc32.castagnoliSSE42Triple
func sharesOf(top []byte) (verification, error) {
	v := verification{}
	lines := 0
	for line := bufio.NewScanner(bytes.NewReader(top)); line.Scan(); {
		fields := strings.Fields(line.Text())
		if len(fields) < 6 || !strings.HasSuffix(fields[1], "%") {
			continue
		}
		percent, err := strconv.ParseFloat(strings.TrimSuffix(fields[1], "%"), 64)
		if err != nil {
			continue // not a line of the table
		}
		lines++
		for prefix, name := range verifiers {
			if strings.HasPrefix(fields[5], prefix) {
				v[name] += percent
			}
		}
	}
	if lines == 0 {
		return nil, fmt.Errorf("parse the output of pprof -top: no figures in %s", top)
	}
	return v, nil
}
