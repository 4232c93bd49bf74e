//go:build e2e

package origin

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// strangerEnv makes this test's program a hub that listens at an address: a path or a port.
const strangerEnv = "LIGHTER_TEST_STRANGER"

func TestMain(m *testing.M) {
	if address := os.Getenv(strangerEnv); address != "" {
		fmt.Println(serveStranger(address))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveStranger prints its address and serves a key.
func serveStranger(address string) error {
	network := "tcp"
	if filepath.IsAbs(address) {
		network = "unix"
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, http.HandlerFunc(serveKey))
}

// stranger runs a hub as another user and returns its address.
func stranger(t *testing.T, uid uint32, address string) string {
	t.Helper()
	program, err := os.Open("/proc/self/exe") // that user may not search the program's directory
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{program}
	cmd.Env = append(os.Environ(), strangerEnv+"="+address)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	var printed string
	if _, err := fmt.Fscanln(out, &printed); err != nil || !strings.ContainsAny(printed, ":/") {
		t.Fatalf("the hub of user %d says %q, %v; want its address", uid, printed, err)
	}
	return printed
}

// The key of a process of another user, which listens on the hub's port or at the path of its
// socket, is refused. The error names that user.
func TestKeyOfAnotherUsersHub(t *testing.T) {
	const nobody = 65534
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} { // searchable for all
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []uint32{nobody, 0} {
		words := ""
		if uid != 0 {
			words = fmt.Sprintf("is run by user %d", uid)
		}
		checkKeys(t, words, "http://"+stranger(t, uid, "127.0.0.1:0"))
		_, port, err := net.SplitHostPort(stranger(t, uid, ":0"))
		if err != nil {
			t.Fatal(err)
		}
		checkKeys(t, words, "http://127.0.0.1:"+port)
		checkKeys(t, words, "unix:"+stranger(t, uid, filepath.Join(dir, fmt.Sprint("hub-", uid, ".sock"))))
	}
}
