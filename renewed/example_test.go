package renewed_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"lighter/renewed"
)

// A token is read from a file. After the file was replaced, Get returns the new token within
// seconds.
func ExampleRead() {
	dir, err := os.MkdirTemp("", "renewed-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	token, err := renewed.Read(slog.Default(), func() (string, error) {
		text, err := os.ReadFile(file)
		return strings.TrimSpace(string(text)), err
	}, file)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(token.Get(context.Background()))
	// Output: secret
}
