module lighter/bench/rebuild

go 1.26.6

require (
	github.com/klauspost/compress v1.20.3
	github.com/klauspost/pgzip v1.2.6
	github.com/opencontainers/image-spec v1.1.1
	github.com/vbatts/tar-split v0.12.3
)

require github.com/opencontainers/go-digest v1.0.0 // indirect
