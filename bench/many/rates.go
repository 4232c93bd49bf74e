package many

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lighter/bench"
)

// Rate is the throughput of a process while clients on its machine request the same objects again
// and again, and discard the answers.
type Rate struct {
	Workload string  `json:"workload"`
	Of       string  `json:"of"`       // "hub" or "squid"
	What     string  `json:"what"`     // "chains": lookups; "units": the units of a start
	Requests float64 `json:"requests"` // successful ones, a second
	Bytes    float64 `json:"bytes"`    // of their answers, a second
	CPU      float64 `json:"cpu"`      // all processor seconds of the process, divided by the successful requests
	P99      float64 `json:"p99"`      // seconds until the end of their answers
	Errors   int64   `json:"errors"`   // failed requests
}

const (
	rateClients = 64              // clients that request at the same time
	rateTime    = 5 * time.Second // duration of a measurement
)

// rates measures the throughput of the hub for lookups and units of a workload, and that of a Squid
// in front of the hub for the units.
func (r *run) rates(ctx context.Context, w *workload) error {
	paths := map[string][]string{"chains": {"/chains/" + w.chains[0]}, "units": w.units}
	for _, what := range []string{"chains", "units"} {
		before, err := r.look(ctx)
		if err != nil {
			return err
		}
		rate, err := ask(ctx, r.Site.Hub.URL, "", paths[what])
		if err != nil {
			return err
		}
		after, err := r.look(ctx)
		if err != nil {
			return err
		}
		rate.CPU = (after.hubCPU - before.hubCPU) / (rate.Requests * rateTime.Seconds())
		r.addRate(w, "hub", what, rate)
	}
	s, err := r.startSquid(ctx, false)
	if err != nil {
		return err
	}
	defer s.stop()
	before, err := awaitCounters(ctx, s.address)
	if err != nil {
		return err
	}
	rate, err := ask(ctx, r.Site.Hub.URL, "http://"+s.address, paths["units"])
	if err != nil {
		return err
	}
	after, err := readCounters(ctx, s.address)
	if err != nil {
		return err
	}
	rate.CPU = (after.CPU - before.CPU) / (rate.Requests * rateTime.Seconds())
	r.addRate(w, "squid", "units", rate)
	return nil
}

func (r *run) addRate(w *workload, of, what string, rate Rate) {
	rate.Workload, rate.Of, rate.What = w.name, of, what
	bench.Say("%-12s %-7s %.0f %s a second, %s a second; %.0f µs of processor time each; p99 %s; %d errors",
		w.name, of, rate.Requests, what, bench.Size(int64(rate.Bytes)), 1e6*rate.CPU, bench.Seconds(rate.P99),
		rate.Errors)
	r.result.Rates = append(r.result.Rates, rate)
}

// ask runs rateClients clients, which request the paths in turn for rateTime. If proxy is not
// empty, they send their requests to the proxy.
func ask(ctx context.Context, hub, proxy string, paths []string) (rate Rate, err error) {
	transport := &http.Transport{MaxIdleConnsPerHost: rateClients, DisableCompression: true}
	if proxy != "" {
		to, err := url.Parse(proxy)
		if err != nil {
			return rate, err
		}
		transport.Proxy = http.ProxyURL(to)
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	ctx, cancel := context.WithTimeout(ctx, rateTime)
	defer cancel()
	var next, bytes, failed atomic.Int64
	took := make([][]float64, rateClients)
	var all sync.WaitGroup
	for i := range took {
		all.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				n, err := get(ctx, &client, hub+"/lighter/1/default"+paths[int(next.Add(1))%len(paths)])
				switch {
				case ctx.Err() != nil:
				case err != nil:
					failed.Add(1)
				default:
					bytes.Add(n)
					took[i] = append(took[i], time.Since(begin).Seconds())
				}
			}
		})
	}
	all.Wait()
	times := slices.Concat(took...)
	if len(times) == 0 {
		return rate, fmt.Errorf("measure the rate of %s: no request succeeded", cmp.Or(proxy, hub))
	}
	seconds := rateTime.Seconds()
	return Rate{Requests: float64(len(times)) / seconds, Bytes: float64(bytes.Load()) / seconds,
		P99: quantiles(times).P99, Errors: failed.Load()}, nil
}

// get requests an object and returns its size in bytes.
func get(ctx context.Context, client *http.Client, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return n, err
}
