package objects

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without credentials, the SDK asks the machine for some, and has something to say about the
// answer. It does so in our log, and does not write to standard error.
func TestSDKWritesToTheLog(t *testing.T) {
	machine := httptest.NewServer(http.NotFoundHandler())
	defer machine.Close()
	storage := httptest.NewServer(http.NotFoundHandler())
	defer storage.Close()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": machine.URL,
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"} {
		t.Setenv(name, value)
	}
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	var log bytes.Buffer
	realStderr, realLog := os.Stderr, slog.Default()
	os.Stderr = stderr
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer func() { os.Stderr = realStderr; slog.SetDefault(realLog) }()
	bucket := "s3://bucket?region=us-east-1&use_path_style=true&endpoint=" + url.QueryEscape(storage.URL)
	if s, err := Open(t.Context(), bucket); err == nil {
		t.Error("a bucket was opened without credentials")
		_ = s.Close()
	}
	written, err := os.ReadFile(stderr.Name())
	if err != nil || len(written) > 0 {
		t.Errorf("standard error has %q, %v, want nothing", written, err)
	}
	if !strings.Contains(log.String(), "message of the AWS SDK") {
		t.Errorf("the log has no message of the SDK, which this test is about: %s", &log)
	}
}
