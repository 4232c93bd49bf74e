package doctor

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/socketdir"
)

// Docker's findings depend on its storage driver, and on the containerd that it uses.
func TestDocker(t *testing.T) {
	const socket = "/run/containerd/containerd.sock"
	config := filepath.Join(t.TempDir(), "daemon.json")
	store := [][2]string{{"driver-type", "io.containerd.snapshotter.v1"}}
	at := func(address string) struct{ Address string } { return struct{ Address string }{address} }
	for want, c := range map[string]struct {
		info   DockerInfo
		config string
		level  Level
	}{
		"Docker 29.7.2 uses the node": {DockerInfo{Driver: "lighter", DriverStatus: store, Containerd: at(socket)},
			"", OK},
		"are not lazy": {DockerInfo{Driver: "overlay2", DriverStatus: [][2]string{{"x", "y"}}}, "", OK},
		"has not read": {DockerInfo{Driver: "overlayfs", DriverStatus: store}, `{"storage-driver": "lighter"}`,
			Warning},
		"the containerd at /x": {DockerInfo{Driver: "lighter", DriverStatus: store, Containerd: at("/x")}, "", Problem},
		"reads the whole image": {DockerInfo{Driver: "lighter", DriverStatus: store,
			SecurityOptions: []string{"name=seccomp,profile=builtin", "name=userns"}}, "", Warning},
	} {
		if err := os.WriteFile(config, []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		c.info.ServerVersion = "29.7.2"
		got := judgeDocker(Docker{Config: config, DockerInfo: c.info}, socket)
		if len(got) != 1 || got[0].Level != c.level || !strings.Contains(got[0].What, want) {
			t.Errorf("got %+v, want %s: %s", got, c.level, want)
		}
	}
}

// What dockerd says of itself is bounded, and may be wrong.
func TestAskDocker(t *testing.T) {
	socket := filepath.Join(socketdir.New(t), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answer := ""
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/info" || answer == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(answer)) // the client may have gone
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); <-served })
	for text, want := range map[string]string{"": "503 Service Unavailable", "<html>": "its answer",
		`{"Name": "` + strings.Repeat("x", maxDockerInfo) + `"}`: "its answer"} {
		answer = text
		if _, err := askDocker(t.Context(), socket); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	answer = `{"ServerVersion": "29.7.2", "Driver": "lighter", "Containers": 2,
		"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}`
	if info, err := askDocker(t.Context(), socket); err != nil || !info.ImageStore() || info.Containers != 2 {
		t.Errorf("got %+v, %v; want what dockerd has said", info, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := askDocker(ctx, socket); err == nil {
		t.Error("after the end of the context: want an error")
	}
}

func TestFlag(t *testing.T) {
	for line, want := range map[string]string{"-H fd:// -s a": "a", "--storage-driver=a -s b": "b",
		"--storage-driver a": "a", "-s": "", "storage-driver=a": ""} {
		if got, _ := Flag(strings.Fields(line), "storage-driver", "s"); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}
