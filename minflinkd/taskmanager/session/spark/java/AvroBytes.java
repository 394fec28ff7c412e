package org.minflinkd;

import java.io.IOException;
import java.nio.ByteBuffer;

import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.Decoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.util.Utf8;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads Avro from the bytes of one record, which may be damaged.
 *
 * Avro's own decoder makes room for as many bytes or elements as the data names. A few wrong bytes then name two
 * billion, and end the JVM. So lengths are compared with what is left, and texts have to be UTF-8.
 */
final class AvroBytes extends Decoder {
  private static final long SMALL = 1000; // elements may be empty, and take no bytes: so many are allowed in any case

  private final BinaryDecoder in;
  private final int length;

  AvroBytes(byte[] data, int offset) {
    this.in = DecoderFactory.get().binaryDecoder(data, offset, data.length - offset, null);
    this.length = data.length - offset;
  }

  boolean isEnd() throws IOException {
    return in.isEnd();
  }

  private int size() throws IOException {
    long size = in.readLong();
    if (size < 0 || size > length) throw new IOException("a length of " + size + " in a record of " + length + " bytes");
    return (int) size;
  }

  private byte[] bytes() throws IOException {
    byte[] bytes = new byte[size()];
    in.readFixed(bytes, 0, bytes.length);
    return bytes;
  }

  private long count(long count) throws IOException {
    if (count < 0 || count > Math.max(length, SMALL)) {
      throw new IOException(count + " elements in a record of " + length + " bytes");
    }
    return count;
  }

  public Utf8 readString(Utf8 old) throws IOException {
    byte[] bytes = bytes();
    if (!UTF8String.fromBytes(bytes).isValid()) throw new IOException("a text is not UTF-8");
    return new Utf8(bytes);
  }

  public String readString() throws IOException {
    return readString(null).toString();
  }

  public void skipString() throws IOException {
    in.skipFixed(size());
  }

  public ByteBuffer readBytes(ByteBuffer old) throws IOException {
    return ByteBuffer.wrap(bytes());
  }

  public void skipBytes() throws IOException {
    in.skipFixed(size());
  }

  public long readArrayStart() throws IOException {
    return count(in.readArrayStart());
  }

  public long arrayNext() throws IOException {
    return count(in.arrayNext());
  }

  public long skipArray() throws IOException {
    return count(in.skipArray());
  }

  public long readMapStart() throws IOException {
    return count(in.readMapStart());
  }

  public long mapNext() throws IOException {
    return count(in.mapNext());
  }

  public long skipMap() throws IOException {
    return count(in.skipMap());
  }

  public void readNull() throws IOException {
    in.readNull();
  }

  public boolean readBoolean() throws IOException {
    return in.readBoolean();
  }

  public int readInt() throws IOException {
    return in.readInt();
  }

  public long readLong() throws IOException {
    return in.readLong();
  }

  public float readFloat() throws IOException {
    return in.readFloat();
  }

  public double readDouble() throws IOException {
    return in.readDouble();
  }

  public void readFixed(byte[] bytes, int start, int length) throws IOException {
    in.readFixed(bytes, start, length);
  }

  public void skipFixed(int length) throws IOException {
    in.skipFixed(length);
  }

  public int readEnum() throws IOException {
    return in.readEnum();
  }

  public int readIndex() throws IOException {
    return in.readIndex();
  }
}
