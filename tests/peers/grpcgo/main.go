// Program grpcgo is a client of gRPC for Go that talks to a server which says again what it hears.
//
// Usage: grpcgo ADDRESS [AUTHORITY TOKEN].  On one connection it opens streams at the same time, sends messages of many
// sizes on each, and looks whether they come back as they were; then it asks for what the server refuses.  It prints
// "ok", or what was wrong.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const method = "/echo.Echo/Say"

var description = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// raw hands bytes on as they are.
type raw struct{}

func (raw) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (raw) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = bytes.Clone(data)
	return nil
}
func (raw) Name() string { return "raw" }

func main() {
	chosen := insecure.NewCredentials()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if len(os.Args) > 2 {
		secure, err := credentials.NewClientTLSFromFile(os.Args[2], "localhost")
		if err != nil {
			fail(err)
		}
		chosen = secure
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+os.Args[3])
	}
	limits := grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(8<<20), grpc.WaitForReady(true))
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(chosen), limits)
	if err != nil {
		fail(err)
	}
	results := make(chan error)
	for number := range 20 {
		go func() { results <- talk(ctx, connection, byte(number)) }()
	}
	for range 20 {
		if err := <-results; err != nil {
			fail(err)
		}
	}
	refused(ctx, connection, bytes.Repeat([]byte("x"), 4<<20+1), codes.ResourceExhausted)
	refused(ctx, connection, []byte("finish"), codes.NotFound)
	refused(ctx, connection, bytes.Repeat([]byte("x"), 1000), codes.Unimplemented, grpc.UseCompressor("gzip"))
	fmt.Println("ok")
}

func talk(ctx context.Context, connection *grpc.ClientConn, mark byte) error {
	stream, err := connection.NewStream(ctx, description, method)
	if err != nil {
		return err
	}
	sizes := []int{0, 1, 16379, 16384, 65535, 100_000, 600_000}
	for range 200 {
		sizes = append(sizes, 300)
	}
	go func() {
		for _, size := range sizes {
			message := bytes.Repeat([]byte{mark}, size)
			if stream.SendMsg(&message) != nil {
				return // RecvMsg says why
			}
		}
		stream.CloseSend()
	}()
	for _, size := range sizes {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		if !bytes.Equal(message, bytes.Repeat([]byte{mark}, size)) {
			return fmt.Errorf("a message of %d bytes came back with %d", size, len(message))
		}
	}
	var message []byte
	if err := stream.RecvMsg(&message); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the end is %w", err)
	}
	return nil
}

func refused(ctx context.Context, connection *grpc.ClientConn, message []byte, code codes.Code, how ...grpc.CallOption) {
	stream, err := connection.NewStream(ctx, description, method, how...)
	if err != nil {
		fail(err)
	}
	stream.SendMsg(&message)
	for {
		var answer []byte
		err := stream.RecvMsg(&answer)
		if err == nil {
			continue
		}
		if status.Code(err) != code {
			fail(fmt.Errorf("%v is not %v", err, code))
		}
		return
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
