import os, re, sys, time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
import numpy as np, torch
import gradspace as gs
from gradspace.data.scenes.dataset import Scenes
from gradspace.models import *
import gradspace.models.vsrn as V

def item(a):
    split,i=a; s=Scenes(split=split,num_images=8000,num_regions=36,dimension=256); return s.regions(i),[c.text for c in s.captions(i)]
def load():
    out={}
    with ProcessPoolExecutor(16) as p:
        for split,n in (("train",6000),("test",1000)):
            r=list(p.map(item,[(split,i) for i in range(n)],chunksize=50))
            out[split]=(torch.tensor(np.stack([x[0] for x in r])).cuda(),[x[1] for x in r])
    return out
def main():
    import transformers; print("torch",torch.__version__,"transformers",transformers.__version__)
    data=load()
    count=Counter(w for cs in data["train"][1] for c in cs for w in re.findall(r"\w+",c.lower()))
    vocab={w:i+4 for i,w in enumerate(w for w,k in count.items() if k>=4)}
    def enc(cs):
        t=[[1]+[vocab.get(w,3) for w in re.findall(r"\w+",c.lower())]+[2] for c in cs]
        L=torch.tensor([len(x) for x in t]); T=torch.zeros(len(t),int(L.max()),dtype=torch.long)
        for r,x in zip(T,t): r[:len(x)]=torch.tensor(x)
        return T.cuda(),L
    all_train=enc([c for k in data["train"][1] for c in k]); all_test=enc([c for k in data["test"][1] for c in k])
    def evaluate(m):
        m.eval(); f=data["test"][0]
        with torch.no_grad():
            I=torch.cat([m.embed_images(x) for x in f.split(250)])
            E=torch.cat([m.embed_texts(a[:,:int(b.max())],b) for a,b in zip(all_test[0].split(500),all_test[1].split(500))])
        s=I@E.T; ids=torch.arange(len(f)).cuda(); tid=ids.repeat_interleave(5)
        r=f"{100*(tid[s.argmax(1)]==ids).float().mean():.1f}/{100*(s.argmax(0)==tid).float().mean():.1f}"
        m.train(); return r
    def train(m, epochs, lr, tag, obj, warm=None, opt=torch.optim.Adam):
        m=m.cuda(); loss=gs.RetrievalLoss(obj); wl=gs.RetrievalLoss(warm) if warm else loss
        groups=m.parameter_groups(lr); o=opt(groups,fused=True); f=data["train"][0]; t0=time.time(); log=[]
        for e in range(epochs):
            if e==int(epochs*.6):
                for g in o.param_groups: g["lr"]*=.1
            tot=0; perm=torch.randperm(len(all_train[1])); n=0
            for b in perm.split(128):
                if len(b)<128: continue
                L=all_train[1][b]; T=all_train[0][b.cuda()][:,:int(L.max())]; img=b//5
                with torch.autocast("cuda",torch.bfloat16):
                    i,t=m(f[img.cuda()],T,L)
                l=(wl if e==0 else loss)(i,t,img,img); x=m.extra_loss()
                if x is not None: l=l+x
                o.zero_grad(); l.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(),2.0); o.step(); tot+=l.detach(); n+=1
            if e%3==2: log.append(f"{tot.item()/n:.1f}:{evaluate(m)}")
        print(tag, obj, warm, lr, " ".join(log), f"{time.time()-t0:.0f}s", flush=True)
    ii=ImageInput(shape=(36,256)); ti=TextInput(vocabulary_size=len(vocab)+4)
    unit=V.unit
    def wrong(x): return x/x.float().pow(2).sum(1,keepdim=True).sqrt().clamp(min=1e-6)
    variants={
     "unit-both":lambda s,x: unit(s.blocks(unit(s.project(s.images(x))))),
     "none": lambda s,x: s.blocks(s.project(s.images(x))),
     "published-wrong-axis": lambda s,x: wrong(s.blocks(wrong(s.project(s.images(x))))),
     "unit*sqrt(d/N)": lambda s,x: unit(s.blocks(unit(s.project(s.images(x)))*(s.width/x.shape[1])**.5))*(s.width/x.shape[1])**.5,
    }
    E=int(sys.argv[1]) if len(sys.argv)>1 else 9
    if "base" in sys.argv:
        for obj,warm in (("nt-xent",None),("triplet-hard","triplet")):
            torch.manual_seed(0); train(build_model("vse++",image_input=ii,text_input=ti),E,5e-4,"vse++",obj,warm)
            for drop in (0.0,.2):
                torch.manual_seed(0); train(build_model("vse-infinity",image_input=ii,text_input=ti,drop=drop),E,5e-4,f"vse-inf drop {drop}",obj,warm)
    orig=V.VSRN._reason
    for obj,warm in (("nt-xent",None),("triplet-hard","triplet")):
        for k,fn in variants.items():
            torch.manual_seed(0); V.VSRN._reason=fn
            train(build_model("vsrn",image_input=ii,text_input=ti,width=1024),E,2e-4,f"{k:22}",obj,warm)
    V.VSRN._reason=orig
if __name__=="__main__": main()
